"""A service that clusters clients by their labels and shows the server nothing but whom it selected."""
