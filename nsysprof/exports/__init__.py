"""One report as columns and as tracks, for other programs to read: computed here, written by `nsysprof.render`."""
