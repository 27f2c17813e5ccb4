"""Does a report keep to its budget?"""
