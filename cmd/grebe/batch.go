package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"grebe/internal/cli"
	"grebe/internal/durable"
	"grebe/internal/human"
	"grebe/server/batch"
)

// batchCmd answers files of requests.
type batchCmd struct {
	Rank      batchRankCmd      `cmd:"" help:"Rank candidates for many users."`
	Recommend batchRecommendCmd `cmd:"" help:"Recommend items to many users."`
}

func (batchCmd) Help() string {
	return `Examples:

    grebe batch rank requests.ndjson --out answers.ndjson
    grebe batch recommend requests.ndjson --out answers.ndjson`
}

type batchRankCmd struct{ batchFlags }

func (c *batchRankCmd) Run(w *cli.World) error { return c.answer(w, "rank") }

type batchRecommendCmd struct{ batchFlags }

func (c *batchRecommendCmd) Run(w *cli.World) error { return c.answer(w, "recommend") }

// batchFlags are what the commands have in common.
type batchFlags struct {
	File   string `arg:"" type:"path" placeholder:"FILE"`
	Out    string `required:"" type:"path" help:"File for the answers." placeholder:"FILE"`
	Server string `default:"http://127.0.0.1:8080" env:"GREBE_SERVER" placeholder:"URL"`
	cli.AccessFlags
}

func (batchFlags) FlagHelp() cli.Texts {
	return cli.Texts{
		"file":   "Requests, one per line, as POST /v1/rank and /v1/recommend take them.",
		"server": "Address of the server; of a cluster always the same node.",
	}
}

func (batchFlags) Help() string {
	return `The server answers the requests in order, in the time that other requests leave. The file of answers has one
line per request: the answer without times and usage, or an error. The file appears when it is complete.

After an interruption of the command or of the server run the same command again: it continues. After Ctrl-C the batch
continues on the server, and the command prints its id.

Examples:

    grebe batch rank requests.ndjson --out answers.ndjson
    grebe batch recommend requests.ndjson --out answers.ndjson --server http://10.0.0.7:8080`
}

// batchState is stored beside the answers while they are not there.
type batchState struct {
	ID     string `json:"id"`
	Digest string `json:"digest"` // of operation, server and requests
}

// batchLook is the time between two looks at a batch.
const batchLook = 200 * time.Millisecond

func (c *batchFlags) answer(w *cli.World, op string) error {
	base, err := cli.ServerURL(c.Server)
	if err != nil {
		return err
	}
	client, err := c.Client(w, 0) // large files take long
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	b := &batchCall{world: w, base: base, client: client}
	state, err := c.state(op)
	if err != nil {
		return err
	}
	j, err := b.call(http.MethodGet, state.ID, nil)
	if errors.Is(err, errNoBatch) {
		j, err = c.submit(b, op, state.ID)
	}
	if err != nil {
		return err
	}
	if j, err = b.wait(j); err != nil {
		return err
	}
	if j.State != batch.Done {
		return errors.Join(fmt.Errorf("batch %s was canceled after %d of %s %s", j.ID, j.Done,
			human.Count(j.Lines, "request"), j.Error),
			durable.Remove(c.Out+".batch"))
	}
	answers, err := b.results(j, c.Out)
	if err != nil {
		return err
	}
	if err := durable.Remove(c.Out + ".batch"); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.Stdout, "%s: %v\n", c.Out, &answers)
	return err
}

// state returns the batch of an earlier run of the same command, or a new one. It is stored before the server hears of
// it, so that a repeated run finds it.
func (c *batchFlags) state(op string) (*batchState, error) {
	f, err := os.Open(c.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n", op, c.Server)
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	s := &batchState{ID: rand.Text(), Digest: hex.EncodeToString(h.Sum(nil))}
	var old batchState
	if data, err := os.ReadFile(c.Out + ".batch"); err == nil && json.Unmarshal(data, &old) == nil &&
		old.Digest == s.Digest {
		return &old, nil
	}
	return s, durable.WriteFile(c.Out+".batch", func(w io.Writer) error { return json.NewEncoder(w).Encode(s) })
}

func (c *batchFlags) submit(b *batchCall, op, id string) (*batch.Job, error) {
	f, err := os.Open(c.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return b.call(http.MethodPost, "?op="+op+"&id="+id, f)
}

// batchCall speaks of batches with a server.
type batchCall struct {
	world  *cli.World
	base   *url.URL
	client *http.Client
}

var errNoBatch = errors.New("no such batch")

func (b *batchCall) send(method, at string, body io.Reader) (*http.Response, error) {
	path := b.base.JoinPath("/v1/batches").String()
	if method != http.MethodPost {
		path += "/"
	}
	req, err := http.NewRequestWithContext(b.world.Ctx, method, path+at, body)
	if err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-ndjson")
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("batch: %w", cli.Unanswered(err))
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusAccepted {
		return resp, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound && method == http.MethodGet {
		return nil, fmt.Errorf("%w: %w", errNoBatch, refused(resp))
	}
	return nil, refused(resp)
}

func (b *batchCall) call(method, at string, body io.Reader) (*batch.Job, error) {
	resp, err := b.send(method, at, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	j := new(batch.Job)
	if err := json.NewDecoder(resp.Body).Decode(j); err != nil {
		return nil, fmt.Errorf("batch: read the answer of %s: %w", b.base, err)
	}
	return j, nil
}

// wait waits until a batch has ended, and reports how far it is.
func (b *batchCall) wait(j *batch.Job) (*batch.Job, error) {
	every, shown := 10*time.Second, time.Now()
	if b.world.Terminal {
		every = time.Second
	}
	for !j.Ended() {
		if time.Since(shown) >= every {
			shown = time.Now()
			fmt.Fprintf(b.world.Stderr, "%d of %s answered\n", j.Done, human.Count(j.Lines, "request"))
		}
		select {
		case <-b.world.Ctx.Done():
			return nil, fmt.Errorf("%w: batch %s goes on; run the same command again for its answers", b.world.Ctx.Err(), j.ID)
		case <-time.After(batchLook):
		}
		next, err := b.call(http.MethodGet, j.ID, nil)
		if err != nil {
			return nil, err
		}
		j = next
	}
	return j, nil
}

// answerCounter counts the lines that are written to it, and those of them that are errors.
type answerCounter struct {
	lines, failed int64
	first         int64  // line of the first error
	begin         []byte // of the line that is being written
}

const errorBegins = `{"error":`

func (n *answerCounter) Write(b []byte) (int, error) {
	size := len(b)
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		n.begin = append(n.begin, line[:min(len(line), len(errorBegins)-len(n.begin))]...)
		if b = rest; !ended {
			break
		}
		n.lines++
		if string(n.begin) == errorBegins {
			if n.failed++; n.failed == 1 {
				n.first = n.lines
			}
		}
		n.begin = n.begin[:0]
	}
	return size, nil
}

func (n *answerCounter) String() string {
	all := human.Count(n.lines, "answer")
	switch n.failed {
	case 0:
		return all
	case 1:
		return fmt.Sprintf("%s, 1 of them an error, in line %d", all, n.first)
	}
	return fmt.Sprintf("%s, %d of them errors, the first in line %d", all, n.failed, n.first)
}

// results writes the answers to a file, if all of them come.
func (b *batchCall) results(j *batch.Job, out string) (n answerCounter, err error) {
	resp, err := b.send(http.MethodGet, j.ID+"/results", nil)
	if err != nil {
		return n, err
	}
	defer resp.Body.Close()
	err = durable.WriteFile(out, func(w io.Writer) error {
		_, err := io.Copy(io.MultiWriter(w, &n), resp.Body)
		if err == nil && n.lines != j.Lines {
			err = fmt.Errorf("batch: the server sent %s to %s: run the command again", human.Count(n.lines, "answer"),
				human.Count(j.Lines, "request"))
		}
		return err
	})
	return n, err
}
