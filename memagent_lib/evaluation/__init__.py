"""Examples x agent -> one record per result; tables, comparisons and intervals are functions of the records."""
