package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"grebe/cluster/status"
	"grebe/internal/cli"
)

// clusterCmd has the commands for operators of a cluster.
type clusterCmd struct {
	Status  clusterStatusCmd  `cmd:"" help:"Show the nodes of a cluster, their state and what moved between them."`
	Drain   clusterDrainCmd   `cmd:"" help:"Send a node no new requests, such as before it is stopped."`
	Undrain clusterUndrainCmd `cmd:"" help:"Send a drained node requests again."`
	Leave   clusterLeaveCmd   `cmd:"" help:"Prepare a process to be stopped: no new requests until it starts again."`
}

func (clusterCmd) Help() string {
	return `Any process of the cluster answers these commands. If the server has keys, they need one with the role admin,
except at the admin listener.

Examples:

    grebe cluster status
    grebe cluster drain n2 --server http://127.0.0.1:8081`
}

// clusterFlags are what the commands have in common.
type clusterFlags struct {
	Server  string        `default:"http://127.0.0.1:8080" env:"GREBE_SERVER" placeholder:"URL"`
	Timeout time.Duration `default:"10s" want:"above 0" help:"Give up after this time."`
	cli.AccessFlags
}

func (clusterFlags) FlagHelp() cli.Texts {
	return cli.Texts{
		"server": "Address of any process of the cluster.",
	}
}

type clusterStatusCmd struct {
	JSON  bool `name:"json" help:"Print JSON even to a terminal."`
	Watch bool `help:"Print it again every second, until Ctrl-C."`
	clusterFlags
}

func (clusterStatusCmd) Help() string {
	return `Shows the cluster as one process sees it. Columns of a node: backlog is the predicted time until its queue is
empty, entries are those of KV that the process knows of, age is the time since the last proof that it knows them,
routed and failed count the requests that the process sent there.

Examples:

    grebe cluster status
    grebe cluster status --watch
    grebe cluster status --json --server http://127.0.0.1:8081`
}

type clusterDrainCmd struct {
	Node string `arg:"" help:"Id of the node."`
	clusterFlags
}

func (clusterDrainCmd) Help() string {
	return `Requests that the node has are finished. Other nodes still fetch KV from it. The mark is stored in the
coordinator: it survives restarts of the node, until undrain.

Example:

    grebe cluster drain n2`
}

type clusterUndrainCmd struct {
	Node string `arg:"" help:"Id of the node."`
	clusterFlags
}

func (clusterUndrainCmd) Help() string {
	return `Example:

    grebe cluster undrain n2`
}

func (c *clusterDrainCmd) Run(w *cli.World) error   { return c.mark(w, c.Node, "drain") }
func (c *clusterUndrainCmd) Run(w *cli.World) error { return c.mark(w, c.Node, "undrain") }

// mark sets or removes the mark of a node, and prints what follows from it.
func (c *clusterFlags) mark(w *cli.World, node, verb string) error {
	client, err := c.Client(w, c.Timeout)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	if _, err := c.call(w, client, http.MethodPost, "/v1/cluster/nodes/"+url.PathEscape(node)+":"+verb); err != nil {
		return err
	}
	says := "%s gets no new requests; those that it has are finished. `grebe cluster undrain %[1]s` takes it back.\n"
	if verb == "undrain" {
		says = "%s gets requests again.\n"
	}
	_, err = fmt.Fprintf(w.Stdout, says, node)
	return err
}

// clusterWatch is the time between two readings of --watch.
const clusterWatch = time.Second

func (c *clusterStatusCmd) Run(w *cli.World) error {
	client, err := c.Client(w, c.Timeout)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	if !c.Watch {
		return c.show(w, client)
	}
	if _, err := cli.ServerURL(c.Server); err != nil {
		return err
	}
	for {
		// A process that does not answer may be restarting: --watch goes on.
		if err := c.show(w, client); err != nil && w.Ctx.Err() == nil {
			fmt.Fprintln(w.Stderr, "grebe:", err)
		}
		select {
		case <-w.Ctx.Done():
			return nil
		case <-time.After(clusterWatch):
		}
	}
}

// show prints the cluster once: a table on a terminal, JSON elsewhere.
func (c *clusterStatusCmd) show(w *cli.World, client *http.Client) error {
	body, err := c.call(w, client, http.MethodGet, "/v1/cluster")
	if err != nil {
		return err
	}
	if c.JSON || !w.Terminal {
		_, err := fmt.Fprintf(w.Stdout, "%s\n", bytes.TrimSpace(body))
		return err
	}
	var s status.Cluster
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("read the answer of %s: %w", c.Server, err)
	}
	text := clusterText(&s)
	if c.Watch {
		text = "\x1b[H\x1b[2J" + text
	}
	_, err = io.WriteString(w.Stdout, text)
	return err
}

// call sends a request and returns the body of a good answer.
func (c *clusterFlags) call(w *cli.World, client *http.Client, method, path string) ([]byte, error) {
	base, err := cli.ServerURL(c.Server)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(w.Ctx, method, base.JoinPath(path).String(), nil)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w; any other process of the cluster answers too: --server URL", cli.Unanswered(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return nil, fmt.Errorf("cluster: read the answer of %s: %w", c.Server, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, adminError(resp, body)
	}
	return nil, cli.ServerError(resp, body)
}
