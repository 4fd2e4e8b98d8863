"""What evaluated runs show: data frame, statistics, tables, figures and the page."""
