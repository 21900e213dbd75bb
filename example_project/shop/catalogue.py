"""What the shop sells, and to whom: goods for people who can wait."""

from __future__ import annotations

PRODUCTS: tuple[tuple[str, str, str, str], ...] = (
    ("hourglass", "Hourglass", "Half an hour of white sand, turned by hand.", "24.00"),
    ("egg-timer", "Egg timer", "Rings when it rings. Never early.", "12.50"),
    ("sundial", "Sundial", "No batteries, no drift, closed at night.", "79.00"),
    ("candle", "Marked candle", "Burns one ring an hour, as monks liked it.", "9.80"),
    ("teapot", "Teapot", "Four minutes, not three.", "38.00"),
    ("seeds", "Oak seeds", "Shade in forty years.", "4.20"),
    ("snail-mail", "Letter set", "Paper, ink and a stamp. Delivery: days.", "16.00"),
    ("sourdough", "Sourdough starter", "Fed daily, forgives a missed day.", "7.50"),
)

CUSTOMERS: tuple[str, ...] = (
    "Ada Lindqvist",
    "Bruno Keller",
    "Chiara Fonti",
    "Dmitri Volkov",
    "Elif Aydın",
    "Farid Haddad",
    "Grace Okafor",
    "Hanna Novák",
    "Ivan Petrov",
    "June Tanaka",
    "Kofi Mensah",
    "Lena Vogt",
)
