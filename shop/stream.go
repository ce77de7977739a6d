package shop

import "fmt"

// What a sequence model reads of a customer beside purchases: rows for what the profile says, for each
// visit's begin, and for what was searched for. They are named like items and are none.
const (
	visitRow  = "visit"
	hobbyRow  = "hobby:"
	styleRow  = "style:"
	budgetRow = "budget:"
	searchRow = "search:"
)

// Row is an event of a customer's stream: a purchase, or one of Marks.
type Row struct {
	Item  int // purchase: index of World.Items
	Mark  int // else: index of Marks
	Day   int
	Stars int // of a purchase, else 0
}

// Purchase reports whether the row is one.
func (r *Row) Purchase() bool { return r.Stars > 0 }

// Marks returns the names of all rows that are no purchases.
func (w *World) Marks() []string {
	out := []string{visitRow}
	for _, s := range shelves {
		out = append(out, hobbyRow+s.name)
	}
	for _, s := range styleNames {
		out = append(out, styleRow+s)
	}
	for b := range budgets {
		out = append(out, fmt.Sprint(budgetRow, b))
	}
	for c := range w.categories {
		out = append(out, searchRow+w.categories[c].name)
	}
	return out
}

// Stream returns a customer as rows, oldest first: the profile, then for each visit a row that says that it
// began or what was searched for, and its purchases. It says what Text says, without the words.
func (w *World) Stream(u *User) []Row {
	hobby := 1
	style := hobby + len(shelves)
	budget := style + len(styleNames)
	search := budget + len(budgets)
	var out []Row
	mark := func(m, day int) { out = append(out, Row{Mark: m, Day: day}) }
	for i := len(u.Profile.Hobbies) - 1; i >= 0; i-- {
		mark(hobby+u.Profile.Hobbies[i], 0) // the dearest last: the nearest to what follows
	}
	for _, k := range u.Profile.Styles {
		mark(style+k, 0)
	}
	mark(budget+u.Profile.Budget, 0)
	for i := range u.Visits {
		v := &u.Visits[i]
		if v.Search >= 0 {
			mark(search+v.Search, v.Day)
		} else {
			mark(0, v.Day)
		}
		for _, p := range v.Purchases {
			out = append(out, Row{Item: p.Item, Day: v.Day, Stars: p.Stars})
		}
	}
	return out
}
