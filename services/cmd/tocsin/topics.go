package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/topic"
)

// topicsTimeout bounds the talk with Kafka.
const topicsTimeout = 30 * time.Second

// topicsCmd is `tocsin topics`.
type topicsCmd struct {
	Create topicsCreateCmd `cmd:"" help:"Create the topics that are missing; those that exist stay as they are."`
	Check  topicsCheckCmd  `cmd:"" help:"Check that the topics exist and fit together."`
}

type topicsCreateCmd struct {
	Kafka       kafka.Config `embed:"" prefix:"kafka."`
	Partitions  int32        `name:"partitions" default:"12" help:"Partitions of each topic. It cannot be changed later: take as many as instances you may ever want."`
	Replication int16        `name:"replication" default:"-1" help:"Replicas of each partition; -1 is the broker's default. With fewer than 3, a broker lost is data lost."`
}

// Validate names the first setting that is wrong.
func (c *topicsCreateCmd) Validate() error {
	if c.Partitions < 1 {
		return fmt.Errorf("partitions: %d; at least 1 is needed", c.Partitions)
	}
	return nil
}

// Run creates what is missing and says what it was.
func (c *topicsCreateCmd) Run(ctx context.Context) error {
	return withKafka(ctx, c.Kafka, func(ctx context.Context, cl *kgo.Client) error {
		created, err := kafka.Create(ctx, cl, topic.New(c.Kafka.TopicPrefix).All(), c.Partitions, c.Replication)
		for _, name := range created {
			fmt.Fprintln(os.Stdout, "created", name)
		}
		if err != nil {
			return err
		}
		return check(ctx, cl, c.Kafka)
	})
}

type topicsCheckCmd struct {
	Kafka kafka.Config `embed:"" prefix:"kafka."`
}

// Run checks and says how many partitions there are.
func (c *topicsCheckCmd) Run(ctx context.Context) error {
	return withKafka(ctx, c.Kafka, func(ctx context.Context, cl *kgo.Client) error { return check(ctx, cl, c.Kafka) })
}

func check(ctx context.Context, cl *kgo.Client, cfg kafka.Config) error {
	set := topic.New(cfg.TopicPrefix)
	for _, group := range [][]topic.Topic{set.DeviceGroup(), set.AccountGroup(), {set.DeadLetters}} {
		n, err := kafka.Partitions(ctx, cl, group)
		if err != nil {
			return err
		}
		for _, t := range group {
			fmt.Fprintf(os.Stdout, "%s: %d partitions\n", t.Name, n)
		}
	}
	return nil
}

func withKafka(ctx context.Context, cfg kafka.Config, fn func(context.Context, *kgo.Client) error) error {
	cl, err := kgo.NewClient(cfg.Options(nil)...)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, topicsTimeout)
	defer cancel()
	return fn(ctx, cl)
}
