package proto

import (
	"strings"
	"unicode"
)

// Natural reports whether a token's text may be taken from a prototype: it is a piece of natural language. Numbers,
// delimiters, names of days and months, and what stands for something else (<…>, […]) are not: they are what tells
// this history from others, or what the model finds its way by.
func Natural(text string) bool {
	word := strings.TrimSpace(text)
	if word == "" || strings.ContainsAny(text, "\n\r\t") || special(word) || dated[strings.ToLower(word)] {
		return false
	}
	letters := false
	for _, r := range word {
		if unicode.IsDigit(r) || unicode.IsNumber(r) || r == unicode.ReplacementChar {
			return false
		}
		letters = letters || unicode.IsLetter(r)
	}
	return letters
}

// special reports whether a text is written like a token that stands for something else.
func special(word string) bool {
	first, last := word[0], word[len(word)-1]
	return len(word) > 2 && (first == '<' && last == '>' || first == '[' && last == ']')
}

var dated = func() map[string]bool {
	out := map[string]bool{}
	for _, w := range strings.Fields(`january february march april may june july august september october november december
		jan feb mar apr jun jul aug sep sept oct nov dec monday tuesday wednesday thursday friday saturday sunday
		mon tue tues wed thu thur thurs fri sat sun am pm utc gmt`) {
		out[w] = true
	}
	return out
}()
