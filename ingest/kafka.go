package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// pollMessages is the number of messages that are made durable together.
const pollMessages = 2000

// kafka reads a topic as a member of a consumer group.
type kafka struct {
	client *kgo.Client
	mu     sync.Mutex
	waits  map[int32]int64 // messages behind the last one read, by partition that this member has
}

// reachable is how long the brokers have to answer at the start.
const reachable = 15 * time.Second

func newKafka(ctx context.Context, s *Stream) (*kafka, error) {
	k := &kafka{waits: map[int32]int64{}}
	opt := []kgo.Opt{kgo.SeedBrokers(s.Kafka...), kgo.ConsumerGroup(s.Group), kgo.ConsumeTopics(s.Topic),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.FetchMaxBytes(16 << 20),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.OnPartitionsRevoked(k.leave), kgo.OnPartitionsLost(k.leave)}
	if s.Consumer != "" {
		opt = append(opt, kgo.InstanceID(s.Consumer))
	}
	client, err := kgo.NewClient(opt...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, reachable)
	defer stop()
	if err := client.Ping(ctx); err != nil { // a consumer would try again for ever and say nothing
		client.Close()
		return nil, fmt.Errorf("kafka: %w: does a broker run at %s?", err, strings.Join(s.Kafka, ", "))
	}
	k.client = client
	return k, nil
}

// leave forgets partitions that another member has now.
func (k *kafka) leave(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, partitions := range gone {
		for _, p := range partitions {
			delete(k.waits, p)
		}
	}
}

// poll returns records. No partition is given to another member until commit, or the next poll.
func (k *kafka) poll(ctx context.Context) ([]message, error) {
	k.client.AllowRebalance()
	fetches := k.client.PollRecords(ctx, pollMessages)
	var out []message
	var failed error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if p.Err != nil && !errors.Is(p.Err, context.Canceled) && !errors.Is(p.Err, context.DeadlineExceeded) {
			failed = errors.Join(failed, fmt.Errorf("partition %d: %w", p.Partition, p.Err))
		}
		if n := len(p.Records); n > 0 {
			k.mu.Lock()
			k.waits[p.Partition] = max(0, p.HighWatermark-p.Records[n-1].Offset-1)
			k.mu.Unlock()
		}
		for _, r := range p.Records {
			out = append(out, message{place: fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset), key: string(r.Key),
				text: r.Value})
		}
	})
	if len(out) > 0 {
		return out, nil // an error comes again
	}
	return nil, failed
}

func (k *kafka) commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil { // the client may send a commit all the same
		return err
	}
	return k.client.CommitUncommittedOffsets(ctx)
}

func (k *kafka) lag() (sum int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.waits {
		sum += n
	}
	return sum
}

func (k *kafka) close() { k.client.CloseAllowingRebalance() }
