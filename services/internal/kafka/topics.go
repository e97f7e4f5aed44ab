package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/topic"
)

// UnfitError says why the topics cannot be used as they are; waiting does not
// help, somebody has to act. Each problem names its topic and the way out.
type UnfitError struct{ Problems []string }

func (e *UnfitError) Error() string {
	return "the topics are not fit: " + strings.Join(e.Problems, "; ")
}

const timestampType = "message.timestamp.type"

// Create makes the topics that do not exist yet, each with n partitions and
// the replication factor given (-1 is the broker's default), and leaves the
// others alone. It returns the names it created, once the broker shows them: a
// topic is made by the controller, and the brokers hear of it a moment later.
func Create(ctx context.Context, cl *kgo.Client, topics []topic.Topic, n int32, replication int16) ([]string, error) {
	adm := kadm.NewClient(cl)
	var created []string
	for _, t := range topics {
		resp, err := adm.CreateTopic(ctx, n, replication, configs(t), t.Name)
		switch {
		case errors.Is(err, kerr.TopicAlreadyExists), errors.Is(resp.Err, kerr.TopicAlreadyExists):
		case err != nil:
			return created, fmt.Errorf("create topic %s: %w %s", t.Name, err, resp.ErrMessage)
		default:
			created = append(created, t.Name)
		}
	}
	return created, awaitTopics(ctx, adm, created)
}

// awaitTopics returns when the topics are in the cluster's metadata, and each
// partition has its leader.
func awaitTopics(ctx context.Context, adm *kadm.Client, names []string) error {
	for len(names) > 0 {
		details, err := adm.ListTopics(ctx, names...)
		if err != nil {
			return fmt.Errorf("list the new topics: %w", err)
		}
		if !slices.ContainsFunc(names, func(name string) bool { return !complete(details[name]) }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the new topics: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func complete(d kadm.TopicDetail) bool {
	for _, p := range d.Partitions {
		if p.Err != nil || p.Leader < 0 {
			return false
		}
	}
	return d.Err == nil && len(d.Partitions) > 0
}

func configs(t topic.Topic) map[string]*string {
	c := map[string]*string{}
	set := func(k, v string) { c[k] = &v }
	if t.Compact {
		set("cleanup.policy", "compact")
		// A restore reads the whole topic: keep few overwritten records in it.
		set("min.cleanable.dirty.ratio", "0.1")
		set("segment.ms", "600000")
	} else {
		set("cleanup.policy", "delete")
		set("retention.ms", strconv.FormatInt(t.Retention.Milliseconds(), 10))
	}
	if t.LogAppendTime {
		set(timestampType, "LogAppendTime")
	}
	return c
}

// Partitions checks that the topics exist, all with the same number of
// partitions, and that those that need the broker's clock have it (rule T1).
// It returns that number. The error is an *UnfitError when waiting does not
// help, else whatever kept it from asking.
func Partitions(ctx context.Context, cl *kgo.Client, topics []topic.Topic) (int32, error) {
	adm := kadm.NewClient(cl)
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Name
	}
	details, err := adm.ListTopics(ctx, names...)
	if err != nil {
		return 0, fmt.Errorf("list topics: %w", err)
	}
	var unfit UnfitError
	problem := func(format string, args ...any) {
		unfit.Problems = append(unfit.Problems, fmt.Sprintf(format, args...))
	}
	var n int32
	var first string
	for _, t := range topics {
		d, ok := details[t.Name]
		switch {
		case !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			problem("topic %s does not exist: make it with 'tocsin topics create'", t.Name)
			continue
		case d.Err != nil:
			return 0, fmt.Errorf("describe topic %s: %w", t.Name, d.Err)
		}
		count := int32(len(d.Partitions))
		if first == "" {
			n, first = count, t.Name
		} else if count != n {
			problem("topic %s has %d partitions and %s has %d: they must be equal, and the count is fixed once there is data; see 'tocsin topics check'", t.Name, count, first, n)
		}
	}
	if err := checkTimestamps(ctx, adm, topics, details, problem); err != nil {
		return 0, err
	}
	if len(unfit.Problems) > 0 {
		return 0, &unfit
	}
	return n, nil
}

func checkTimestamps(ctx context.Context, adm *kadm.Client, topics []topic.Topic, details kadm.TopicDetails, problem func(string, ...any)) error {
	var names []string
	for _, t := range topics {
		if t.LogAppendTime && details.Has(t.Name) && details[t.Name].Err == nil {
			names = append(names, t.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	described, err := adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return fmt.Errorf("read topic settings: %w", err)
	}
	for _, r := range described {
		if r.Err != nil {
			return fmt.Errorf("read settings of topic %s: %w", r.Name, r.Err)
		}
		for _, c := range r.Configs {
			if c.Key == timestampType && c.MaybeValue() != "LogAppendTime" {
				problem("topic %s has %s=%s: Tocsin's clock is the broker's, set it to LogAppendTime", r.Name, timestampType, c.MaybeValue())
			}
		}
	}
	return nil
}
