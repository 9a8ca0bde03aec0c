#![no_main]
terrane_fuzz::target!(Changes);
