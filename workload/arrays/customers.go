package arrays

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"

	"grebe/shop"
)

// customer is what a split's arrays have of one customer.
type customer struct {
	tokens []uint16 // of the text
	cuts   []int32  // tokens before the line of each purchase: where the question about it is asked
	items  []uint16 // purchases, oldest first
	stars  []uint8
	times  []int32  // days
	stream []uint16 // purchases and marks (shop.Row): an item, or a mark behind the items
	offer  []uint16
	chosen uint8 // place in offer
	next   uint16
	p      []float32 // true probabilities of the offer, in no training split
	middle []question
}

// question is one that is asked before a purchase in the middle of a history. Only training has them.
type question struct {
	event  int32 // which purchase
	offer  []uint16
	chosen uint8
}

// middles is how many questions in the middle of histories a training customer is asked.
const middles = 6

// Customers writes the first n customers of a split: their texts' tokens, purchases, and the question
// at the end. The true probabilities are in validation and test only: training learns from what people
// took, as it would have to elsewhere.
func (x *Writer) Customers(split shop.Split, n int) error {
	all := make([]customer, n)
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for k := range workers {
		wg.Go(func() {
			for i := k; i < n; i += workers {
				all[i] = x.customer(split, i)
			}
		})
	}
	wg.Wait()
	return x.saveCustomers(split, all)
}

func (x *Writer) customer(split shop.Split, n int) customer {
	u := x.w.User(split, n)
	c := customer{next: uint16(u.Next)}
	c.tokens, c.cuts = x.tokenise(x.w.Text(u))
	for i := range u.Visits {
		for _, p := range u.Visits[i].Purchases {
			c.items = append(c.items, uint16(p.Item))
			c.stars = append(c.stars, uint8(p.Stars))
			c.times = append(c.times, int32(u.Visits[i].Day))
		}
	}
	for _, r := range x.w.Stream(u) {
		row := r.Item
		if !r.Purchase() {
			row = len(x.w.Items) + r.Mark
		}
		c.stream = append(c.stream, uint16(row))
	}
	c.offer, c.chosen = offered(u)
	if split == shop.Train {
		for _, k := range rand.New(rand.NewPCG(uint64(n), middles)).Perm(len(c.items))[:min(middles, len(c.items))] {
			q := question{event: int32(k)}
			q.offer, q.chosen = offered(x.w.Before(u, split, n, k))
			c.middle = append(c.middle, q)
		}
	}
	if split != shop.Train {
		for _, p := range x.w.State(u).Probabilities(u.Offer) {
			c.p = append(c.p, float32(p))
		}
	}
	return c
}

// offered returns what a customer is shown, and the place of what they take.
func offered(u *shop.User) (offer []uint16, chosen uint8) {
	for k, i := range u.Offer {
		offer = append(offer, uint16(i))
		if i == u.Chosen {
			chosen = uint8(k)
		}
	}
	return offer, chosen
}

// tokenise returns the tokens of a text and how many are before each line of a purchase. The lines are
// tokenised one by one, which gives the tokens of the whole text: no token spans the start of such a line.
func (x *Writer) tokenise(text string) ([]uint16, []int32) {
	var tokens []uint16
	var cuts []int32
	for {
		at := strings.Index(text, "\n- ")
		if at < 0 {
			return appendTokens(tokens, x.tok.Encode(text)), cuts
		}
		tokens = appendTokens(tokens, x.tok.Encode(text[:at+1]))
		cuts = append(cuts, int32(len(tokens)))
		text = text[at+1:]
	}
}

func (x *Writer) saveCustomers(split shop.Split, all []customer) error {
	var tokens, items, offers, next, stream []uint16
	var cuts, times []int32
	var stars, chosen []uint8
	var p []float32
	var middleUser, middleEvent []int32
	var middleOffers []uint16
	var middleChosen []uint8
	offsets, events, rows := []int64{0}, []int64{0}, []int64{0}
	for i := range all {
		c := &all[i]
		tokens, items, offers = append(tokens, c.tokens...), append(items, c.items...), append(offers, c.offer...)
		cuts, times, stars = append(cuts, c.cuts...), append(times, c.times...), append(stars, c.stars...)
		chosen, next, p = append(chosen, c.chosen), append(next, c.next), append(p, c.p...)
		stream = append(stream, c.stream...)
		for _, q := range c.middle {
			middleUser, middleEvent = append(middleUser, int32(i)), append(middleEvent, q.event)
			middleOffers, middleChosen = append(middleOffers, q.offer...), append(middleChosen, q.chosen)
		}
		offsets, events, rows = append(offsets, int64(len(tokens))), append(events, int64(len(items))),
			append(rows, int64(len(stream)))
	}
	list := []int{len(all), len(offers) / max(len(all), 1)}
	arrays := map[string]array{
		"tokens": flat(tokens), "offsets": flat(offsets), "events": flat(events), "cuts": flat(cuts), "items": flat(items),
		"stars": flat(stars), "times": flat(times), "offers": {offers, list}, "chosen": flat(chosen), "next": flat(next),
		"stream": flat(stream), "rows": flat(rows),
	}
	if split == shop.Train {
		arrays["middle_user"], arrays["middle_event"], arrays["middle_chosen"] = flat(middleUser), flat(middleEvent),
			flat(middleChosen)
		arrays["middle_offers"] = array{middleOffers, []int{len(middleUser), list[1]}}
	} else {
		arrays["p"] = array{p, list}
	}
	return save(x.dir, split.String(), arrays)
}
