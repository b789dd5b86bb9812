"""The HTTP server of the service and of views: addresses, TLS, tokens, deadlines, limits, errors.

It knows nothing of groups and topics.
"""
