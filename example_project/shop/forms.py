"""Forms of the shop."""

from __future__ import annotations

from django import forms

from .models import Customer, Product

MOST_PIECES = 9


class OrderForm(forms.Form):
    """Order of some pieces of one product."""

    product = forms.ModelChoiceField(Product.objects.all())
    quantity = forms.IntegerField(min_value=1, max_value=MOST_PIECES, initial=1)


class CustomerForm(forms.Form):
    """Choice of the customer who is shopping. The example has no passwords: any visitor may be any customer."""

    customer = forms.ModelChoiceField(Customer.objects.all())
