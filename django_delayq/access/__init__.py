"""Access control of the HTTP views, shared by the API and the metrics.

    exempt       decorators for plain Django views: outside transactions, outside the project's login
    permissions  the five actions, the project's ``allow`` rule, throttling
    problems     errors as problem details with stable codes
    views        base view with authentication, permission, throttle and error handling

Everything but ``exempt`` needs Django REST framework.
"""
