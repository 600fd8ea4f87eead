"""The page in Airflow's menu: what of each topic lies where. Made on the server, it loads nothing from elsewhere."""
