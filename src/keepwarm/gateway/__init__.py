"""The public API: authenticate, translate, choose a replica, stream back, account.

Knows neither a tokenizer nor a device; what it needs from elsewhere stands in `ports`.
"""
