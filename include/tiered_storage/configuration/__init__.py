"""How settings are declared, read and refused; what settings there are stands in settings.py and topic_settings.py."""
