package eval

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"grebe/internal/human"
)

// Orders is how well a model ranks with the user first and with the items first, and which of the two to allow.
type Orders struct {
	Model  string   `json:"model"`
	Metric string   `json:"metric"` // NDCG@10, in expectation where that is known
	User   Estimate `json:"user"`
	Item   Estimate `json:"item"`
	Ratio  Estimate `json:"ratio"`  // items first over user first
	Orders []string `json:"orders"` // that are not shown to be worse than the other
	Line   string   `json:"line"`   // for the model in the configuration
}

// CompareOrders adds what two ways say of a model's orders: one has the user first, the other the items. It adds
// nothing where one of them was not measured.
func (r *Report) CompareOrders(model, userFirst, itemFirst string, seed uint64) {
	user, item := r.line(userFirst), r.line(itemFirst)
	ratio, ok := r.Of(itemFirst, userFirst, seed)
	if user == nil || item == nil || !ok {
		return
	}
	o := Orders{Model: model, Metric: "NDCG@10", User: user.At[1].NDCG, Item: item.At[1].NDCG, Ratio: ratio}
	if user.Expected != nil && item.Expected != nil {
		o.Metric, o.User, o.Item = "expected NDCG@10", *user.Expected, *item.Expected
	}
	o.Orders = allowed(ratio)
	o.Line = fmt.Sprintf("prefix: {orders: [%s]}", strings.Join(o.Orders, ", "))
	r.Orders = append(r.Orders, o)
}

// allowed returns the orders that are not shown to be worse, by the ratio of items first over user first: worse is an
// order if the whole interval says so.
func allowed(ratio Estimate) []string {
	switch {
	case ratio.Undefined:
		return []string{"user", "item"}
	case ratio.High < 1:
		return []string{"user"}
	case ratio.Low > 1:
		return []string{"item"}
	}
	return []string{"user", "item"}
}

// says is the verdict in words.
func (o *Orders) says() string {
	switch {
	case slices.Equal(o.Orders, []string{"user"}):
		return "the items first is worse"
	case slices.Equal(o.Orders, []string{"item"}):
		return "the user first is worse"
	}
	return "no difference is shown"
}

// line returns a way's line among the rankings, nil where it was not measured.
func (r *Report) line(way string) *Line {
	for i := range r.Ranking {
		if r.Ranking[i].Way == way {
			return &r.Ranking[i]
		}
	}
	return nil
}

// orders writes the comparison of prompt orders for people.
func (r *Report) orders(b *strings.Builder) error {
	if len(r.Orders) == 0 {
		return nil
	}
	fmt.Fprintf(b, "\nThe two orders of the prompt, with 95 %% intervals over %s\n", human.Count(r.Users, "user"))
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "  model\tmetric\tuser-first\titem-first\titem-first of user-first\t\n")
	for i := range r.Orders {
		o := &r.Orders[i]
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\n", o.Model, o.Metric, o.User, o.Item, o.Ratio, o.says())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Orders {
		fmt.Fprintf(b, "Under model %s in the configuration: %s\n", r.Orders[i].Model, r.Orders[i].Line)
	}
	return nil
}
