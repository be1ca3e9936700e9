"""The command ``polycov``: one file per command. Only here are tyro and rich imported."""
