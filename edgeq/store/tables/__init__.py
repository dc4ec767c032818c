"""The rooms of store/sqlite.py: the database file, its two tables, and one room for each group of verbs."""
