package beam

import (
	"context"
	"fmt"
	"time"

	"grebe/catalog/filter"
)

// Filter is recommendations one after the other, without a filter and with ranges of prices, each asked for once.
type Filter struct {
	Items int    `json:"items"`
	Width int    `json:"width"`
	User  string `json:"user"` // as in Recommend
	Ways  []Way  `json:"ways"` // all items, then shares of them
}

// shares of the items that pass a range.
var shares = []float64{0.01, 0.1, 0.5, 0.9}

// maxPrice bounds the prices of the items, in cents: all are about as frequent.
const maxPrice = 100_000

// price returns the cents of an item's price, in any order.
func price(item int) int { return item * 7919 % maxPrice }

func filtered(ctx context.Context, o *Options, r *Report, p *printer) error {
	c, err := openCrowd(ctx, o, 2*o.items)
	if err != nil {
		return err
	}
	defer c.close()
	r.Device, r.Model = c.device.Name(), c.describe()
	p.filterHead(c, 2*o.items)
	for _, width := range o.widths(128) {
		for _, user := range []string{"new", "returning"} {
			x, err := c.ranges(ctx, o, width, user == "new")
			if err != nil {
				return fmt.Errorf("filters with %d beams: %w", width, err)
			}
			x.Items = 2 * o.items
			r.Filter = append(r.Filter, x)
			p.filter(&x)
			for _, v := range x.Ways[1:] {
				r.Checks = append(r.Checks, Check{
					What: fmt.Sprintf("a range that %s pass costs at most 5 %%, width %d, %s user", v.Name, width, user),
					Got:  fmt.Sprintf("%+.1f %% [%+.1f, %+.1f]", 100*(v.Over-1), 100*(v.Low-1), 100*(v.High-1)),
					OK:   v.Over <= 1.05})
			}
		}
	}
	return nil
}

// ranges times recommendations without a filter and with ranges of several widths, for users who are new or not.
func (c *crowd) ranges(ctx context.Context, o *Options, width int, fresh bool) (Filter, error) {
	x := Filter{Width: width, User: "returning"}
	if fresh {
		x.User = "new"
	}
	asked := 0
	run := func(share float64) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			if asked++; fresh {
				c.seed++
			}
			q := c.request(c.seed, width)
			if share > 0 { // no range is the same as one before
				low := float64(asked%100) / 100 * (1 - share)
				between, _, err := filter.Bounds{GTE: fmt.Sprintf("%.4f", low*maxPrice/100+float64(asked)/1e4),
					LT: fmt.Sprintf("%.4f", (low+share)*maxPrice/100)}.Range()
				if err != nil {
					return 0, err
				}
				q.Filter = filter.Filter{"price": {Range: between}}
			}
			start := time.Now()
			_, err := c.generator.Recommend(ctx, q)
			return time.Since(start), err
		}
	}
	ways := []way{{"all items", run(0)}}
	for _, share := range shares {
		ways = append(ways, way{fmt.Sprintf("%g %%", 100*share), run(share)})
	}
	blocks := o.Blocks
	if !fresh {
		blocks *= 9 // they are short
	}
	var err error
	x.Ways, err = compare(ctx, blocks, ways...)
	return x, err
}

func (p *printer) filterHead(c *crowd, items int) {
	p.printf("\n%s, %s\nrecommendations of %d from %d items, a prompt of %d tokens, with ranges of prices, ms\n",
		c.device.Name(), c.describe(), wanted, items, c.context)
	p.printf("%7s %-10s %-10s %9s %22s\n", "width", "user", "pass", "ms", "over all items")
}

func (p *printer) filter(x *Filter) {
	for _, w := range x.Ways {
		p.printf("%7d %-10s %-10s %9.2f %22s\n", x.Width, x.User, w.Name, w.Ms, w.interval3())
	}
}

// interval3 is interval with another digit.
func (w *Way) interval3() string { return fmt.Sprintf("%.3f [%.3f, %.3f]", w.Over, w.Low, w.High) }
