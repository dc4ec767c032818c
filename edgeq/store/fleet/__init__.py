"""The rooms of store/redis.py: the line to the server, its scripts, and one room for each group of verbs."""
