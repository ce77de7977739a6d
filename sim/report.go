package sim

import (
	"fmt"
	"io"
	"text/tabwriter"

	"grebe/internal/human"
)

// Text writes a report for people.
func (rep *Report) Text(w io.Writer) error {
	if rep.Stopped {
		fmt.Fprintln(w, "Stopped: this is what there is.")
	}
	if len(rep.Runs) == 1 {
		rep.Runs[0].text(w)
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "rate/s\tanswered/s\twithin SLO\tP50 ms\tP90 ms\tP99 ms\thits\tremote MB/s\tbusiest node\t\n")
	for _, r := range rep.Runs {
		_, _, busy := r.balance()
		fmt.Fprintf(tw, "%.1f\t%.1f\t%.2f %%\t%.1f\t%.1f\t%.1f\t%.1f %%\t%.1f\t%.0f %%\t\n", r.Offered, r.Throughput,
			100*r.Within, r.Latency.P50,
			r.Latency.P90, r.Latency.P99, 100*r.Hits.Total, float64(r.RemoteBytes)/1e6/r.Total, 100*busy)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	switch {
	case rep.Sustained == 0:
		fmt.Fprintf(w, "\nNo rate that was tried had %.4g %% of the requests answered within %.4g ms.\n", 100*rep.Within,
			rep.SLO)
	case rep.Fails == 0:
		fmt.Fprintf(w, "\nSustained: %.4g requests/s, the highest rate that was tried, with %.4g %% within %.4g ms.\n",
			rep.Sustained, 100*rep.Within, rep.SLO)
	default:
		fmt.Fprintf(w, "\nSustained: %.4g requests/s with %.4g %% answered within %.4g ms; %.4g is too much.\n",
			rep.Sustained, 100*rep.Within, rep.SLO, rep.Fails)
	}
	return nil
}

// balance returns the least and the most requests of a node relative to the mean, and the busiest node's load.
func (r *Result) balance() (least, most, busy float64) {
	sum, n := 0, 0
	for i := range r.Nodes {
		if r.Nodes[i].Requests > 0 {
			sum += r.Nodes[i].Requests
			n++
		}
	}
	mean := float64(sum) / float64(max(n, 1))
	least = -1
	for i := range r.Nodes {
		node := &r.Nodes[i]
		if node.Requests == 0 {
			continue
		}
		x := float64(node.Requests) / max(mean, 1)
		if least < 0 || x < least {
			least = x
		}
		most, busy = max(most, x), max(busy, node.Busy)
	}
	return max(least, 0), most, busy
}

func (r *Result) text(w io.Writer) {
	if r.Name != "" {
		fmt.Fprintf(w, "%s\n", r.Name)
	}
	fmt.Fprintf(w, "requests    %d in %.1f s (%.1f/s): %.1f/s answered, %.2f %% within the SLO\n",
		r.Requests, r.Seconds, r.Rate, r.Throughput, 100*r.Within)
	fmt.Fprintf(w, "others      %d refused, %d shed, %d lost; %d sent again\n", r.Refused, r.Shed, r.Lost, r.Retries)
	l := &r.Latency
	fmt.Fprintf(w, "latency     P50 %.1f, P90 %.1f, P99 %.1f, most %.1f ms; mean %.1f\n", l.P50, l.P90, l.P99, l.Max,
		l.Mean)
	fmt.Fprintf(w, "hits        %.1f %% of tokens: device %.1f, host %.1f, peers %.1f, computed once %.1f; "+
		"%.1f %% of requests found their user\n",
		100*r.Hits.Total, 100*r.Hits.Device, 100*r.Hits.Host, 100*r.Hits.Peer, 100*r.Hits.Once, 100*r.Hits.Users)
	fmt.Fprintf(w, "orders      user first %.1f %%, items first %.1f %%\n", 100*r.Orders.User, 100*r.Orders.Item)
	if r.RemoteBytes > 0 {
		fmt.Fprintf(w, "network     %.2f GB of KV between nodes (%.1f MB/s), %.2f GB in the background, %.2f GB too late\n",
			float64(r.RemoteBytes)/1e9, float64(r.RemoteBytes)/1e6/r.Total, float64(r.FilledBytes)/1e9,
			float64(r.WastedBytes)/1e9)
	}
	least, most, busy := r.balance()
	fmt.Fprintf(w, "balance     %s: %.2f to %.2f times the mean number of requests; the busiest computes %.0f %% "+
		"of the time\n",
		human.Count(len(r.Nodes), "node"), least, most, 100*busy)
}
