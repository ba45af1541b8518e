"""What hooks of coding clients run: a shell script that notes events, and what it starts."""
