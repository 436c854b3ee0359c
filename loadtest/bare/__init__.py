"""Uses builds of llama.cpp's libraries, each in a separate process, without server or queue."""
