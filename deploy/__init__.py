"""What people and programs touch: the HTTP application and the command line."""
