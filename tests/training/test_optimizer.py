from polycov.training.config import TrainOptions
from polycov.training.optimizer import learning_rate_factor


def test_the_learning_rate_warms_up_and_falls() -> None:
    options = TrainOptions(epochs=11, warmup=1)
    assert [learning_rate_factor(options, t) for t in (0, 0.5, 1, 6, 11)] == [0, 0.5, 1, 0.5, 0]
    steps = TrainOptions(schedule="step", milestones=(30, 45, 60))
    assert [learning_rate_factor(steps, t) for t in (0, 29.9, 30, 45, 64)] == [1, 1, 0.1, 0.01, 0.001]
    assert learning_rate_factor(TrainOptions(schedule="constant"), 17) == 1
