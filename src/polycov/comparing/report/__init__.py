"""From the records of a comparison to tables, figures and a page."""
