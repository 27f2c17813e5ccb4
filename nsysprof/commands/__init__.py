"""One small file per subcommand: parse, call the library, print."""
