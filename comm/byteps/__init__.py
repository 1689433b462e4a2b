"""All of BytePS: its library, its variables, its channels, and the communicator over them."""
