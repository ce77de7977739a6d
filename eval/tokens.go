package eval

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"grebe/bench/report"
	"grebe/prompt"
)

// Tokens is how long users and items are, in tokens.
type Tokens struct {
	Users int     `json:"users"`
	Items int     `json:"items"`
	User  Lengths `json:"user_tokens"`
	Item  Lengths `json:"item_tokens"`
}

// Lengths describes numbers of tokens.
type Lengths struct {
	Mean float64 `json:"mean"`
	Min  int     `json:"min"`
	P50  int     `json:"p50"`
	P90  int     `json:"p90"`
	Max  int     `json:"max"`
}

// Count counts the tokens of users' texts and of items' texts.
func Count(tok prompt.Tokenizer, users, items []string) Tokens {
	measure := func(texts []string) Lengths {
		var n []int
		total := 0
		for _, t := range texts {
			n = append(n, len(tok.AppendEncode(nil, t)))
			total += n[len(n)-1]
		}
		if len(n) == 0 {
			return Lengths{}
		}
		slices.Sort(n)
		return Lengths{float64(total) / float64(len(n)), n[0], report.Percentile(n, 50), report.Percentile(n, 90),
			n[len(n)-1]}
	}
	return Tokens{len(users), len(items), measure(users), measure(items)}
}

// table1 is Table 1 of BAT: users and items in thousands, tokens on average.
var table1 = []struct {
	name         string
	users, items string
	user, item   float64
}{{"Games", "15K", "8K", 1245, 11}, {"Beauty", "22K", "12K", 2043, 18}, {"Books", "510K", "280K", 1586, 15},
	{"Industry", "10M", "1M", 1500, 10}}

// Text writes the lengths beside those of BAT's Table 1.
func (t *Tokens) Text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\tusers\titems\ttokens per user\tper item\t")
	fmt.Fprintf(tw, "this shop\t%d\t%d\t%.0f\t%.1f\t\n", t.Users, t.Items, t.User.Mean, t.Item.Mean)
	for _, r := range table1 {
		fmt.Fprintf(tw, "%s (BAT, Table 1)\t%s\t%s\t%.0f\t%.0f\t\n", r.name, r.users, r.items, r.user, r.item)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "users: %d to %d tokens, median %d, nine of ten below %d; items: %d to %d\n", t.User.Min,
		t.User.Max, t.User.P50, t.User.P90, t.Item.Min, t.Item.Max)
	return err
}
