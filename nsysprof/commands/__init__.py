"""One small module per subcommand: parse, call the library, print."""
