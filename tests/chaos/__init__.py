"""``make chaos``: a real Airflow runs a pipeline while its processes are killed; then four
assertions.
"""
