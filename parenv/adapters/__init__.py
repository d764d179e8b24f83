"""What lets other libraries use parenv; each module needs the library that it is for."""
