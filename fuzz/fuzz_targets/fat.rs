#![no_main]
terrane_fuzz::target!(Fat);
