"""What the API server answers beside Airflow itself."""
