package shop

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// review writes what a customer says of a purchase.
func review(r *rand.Rand, it *Item, department, stars int) string {
	parts := []string{pick(r, verdicts[stars-1])}
	if r.IntN(10) < 7 && stars != 3 {
		about := stylePraise[it.style]
		if stars < 3 {
			about = styleBlame[it.style]
		}
		parts = append(parts, pick(r, about))
	}
	if r.IntN(10) < 4 && stars > 3 {
		parts = append(parts, pick(r, remarks[department]))
	}
	return strings.Join(parts, " ")
}

// Text is the customer as a model reads them: the profile, then a line per purchase under each visit,
// oldest first. A longer history begins with the text of a shorter one.
func (w *World) Text(u *User) string {
	var b strings.Builder
	b.WriteString(w.ProfileText(&u.Profile))
	for i := range u.Visits {
		v := &u.Visits[i]
		fmt.Fprintf(&b, "\n%s", date(v.Day).Format("2 January 2006"))
		if v.Search >= 0 {
			fmt.Fprintf(&b, ", searched for %q", v.Query)
		}
		b.WriteString("\n")
		for _, p := range v.Purchases {
			fmt.Fprintf(&b, "- %s. %d/5 %s\n", w.Items[p.Item].Text(), p.Stars, p.Review)
		}
	}
	return b.String()
}

// ProfileText says a profile in words.
func (w *World) ProfileText(p *Profile) string {
	var hobbies, styles []string
	for _, d := range p.Hobbies {
		hobbies = append(hobbies, shelves[d].hobby)
	}
	for _, k := range p.Styles {
		styles = append(styles, styleTastes[k])
	}
	return fmt.Sprintf("%s is into %s. Likes %s. %s\n", p.Name, list(hobbies), list(styles), budgets[p.Budget])
}

func list(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// date is the day of the world's calendar.
func date(day int) time.Time { return time.Date(2024, 7, 1+day, 9, 0, 0, 0, time.UTC) }
