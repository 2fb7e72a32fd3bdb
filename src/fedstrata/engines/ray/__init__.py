"""The engine on a cluster: Ray carries tasks to workers on several machines."""
