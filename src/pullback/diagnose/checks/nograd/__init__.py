"""Operations through which no gradient comes."""
