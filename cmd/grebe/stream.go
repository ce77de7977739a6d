package main

import (
	"os"

	"grebe/ingest"
	"grebe/internal/cli"
)

type streamCmd struct {
	Kafka       []string `xor:"from" required:"" help:"Brokers of Kafka, such as broker:9092." placeholder:"HOST:PORT"`
	Redis       string   `xor:"from" required:"" help:"Redis server, such as localhost:6379." placeholder:"HOST:PORT"`
	Topic       string   `required:"" help:"Topic of Kafka, or key of a stream of Redis."`
	Group       string   `default:"grebe" help:"Group of consumers, which share the messages; default ${default}."`
	Consumer    string
	Kind        string `required:"" enum:"items,users,events" help:"What the messages are: ${enum}."`
	Map         string `placeholder:"FIELD=NAME,…"`
	Lists       string `default:";" placeholder:"TEXT"`
	Server      string `xor:"target" help:"Write through this running server." placeholder:"URL"`
	Config      string `short:"c" xor:"target" type:"path" placeholder:"FILE"`
	DataDir     string `xor:"target" type:"path" placeholder:"DIR"`
	DeadLetters string `required:"" type:"path" placeholder:"FILE"`
	Metrics     string `help:"Serve metrics at this address; default: none." placeholder:"HOST:PORT"`
	cli.AccessFlags
}

func (streamCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"consumer": "Name of this consumer in its group. A consumer that restarts under its name continues at once. " +
			"Default: the name of this machine with Redis; with Kafka none, and a killed consumer's partitions wait for its " +
			"session to end.",
		"map": "Which field of a message each field comes from, as grebe import takes it; default: messages have the " +
			"form of the API.",
		"lists":        "Text between the elements of a list in one text; default ${default}.",
		"config":       "Write into the data_dir of this configuration.",
		"data-dir":     "Write into this folder; default: GREBE_DATA_DIR or ./grebe-data.",
		"dead-letters": "File to which unreadable messages are appended.",
	}
}

func (streamCmd) Help() string {
	return `Messages are JSON objects in the form of /v1/items:batch, /v1/users:batch or /v1/events:batch. Other objects
need --map. In a stream of Redis the object is the field "value" of an entry, or else all fields of the entry. A record
of Kafka with a key and without a value deletes the item or user of that key.

A message is taken off the stream once its change is durable. One that comes twice changes nothing.
The metrics grebe_stream_lag and grebe_stream_messages_total{outcome="changed|unchanged|bad"} show its progress.

Examples:

    grebe stream --kafka broker:9092 --topic clicks --kind events \
        --dead-letters bad.ndjson --server http://127.0.0.1:8080
    grebe stream --redis localhost:6379 --topic products --kind items --map id=sku,text=title \
        --dead-letters bad.ndjson`
}

func (c *streamCmd) Run(w *cli.World) error {
	if c.Consumer == "" && c.Redis != "" {
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		c.Consumer = name
	}
	return (&ingest.Stream{
		Kafka: c.Kafka, Redis: c.Redis, Topic: c.Topic, Group: c.Group, Consumer: c.Consumer, Kind: c.Kind, Map: c.Map,
		Lists:  c.Lists,
		Server: c.Server, Config: c.Config, DataDir: c.DataDir, DeadLetters: c.DeadLetters, Metrics: c.Metrics,
		Access: &c.AccessFlags,
	}).Run(w)
}
