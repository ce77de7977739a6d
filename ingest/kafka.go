package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// pollMessages is the number of messages that are made durable together.
const pollMessages = 2000

// kafka reads a topic as a member of a consumer group.
type kafka struct {
	client *kgo.Client
	waits  map[int32]int64 // messages behind the last one read, by partition
	total  atomic.Int64
}

func newKafka(s *Stream) (*kafka, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Kafka...), kgo.ConsumerGroup(s.Group), kgo.ConsumeTopics(s.Topic),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.FetchMaxBytes(16<<20), kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &kafka{client: client, waits: map[int32]int64{}}, nil
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
		for _, r := range p.Records {
			out = append(out, message{place: fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset), key: string(r.Key), text: r.Value})
			k.waits[r.Partition] = max(0, p.HighWatermark-r.Offset-1)
		}
	})
	if len(out) > 0 {
		return out, nil // an error comes again
	}
	return nil, failed
}

func (k *kafka) commit(ctx context.Context) error {
	sum := int64(0)
	for _, n := range k.waits {
		sum += n
	}
	k.total.Store(sum)
	return k.client.CommitUncommittedOffsets(ctx)
}

func (k *kafka) lag() int64 { return k.total.Load() }

func (k *kafka) close() { k.client.CloseAllowingRebalance() }
