package kafka_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/kafkatest"
	"github.com/tocsin/tocsin/services/internal/topic"
)

// A second create leaves what is there, and the check returns the count.
func TestCreateIsRepeatable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 3)
		cl := c.Client(t)
		created, err := kafka.Create(context.Background(), cl, c.Topics.All(), 5, 1)
		if err != nil || len(created) != 0 {
			t.Fatalf("second create made %v, %v; want nothing", created, err)
		}
		if n, err := kafka.Partitions(context.Background(), cl, c.Topics.AccountGroup()); n != 3 || err != nil {
			t.Fatalf("partitions = %d, %v; want 3", n, err)
		}
	})
}

// A missing topic, unequal counts and a producer's clock are refused, each by name.
func TestUnfitTopicsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kafkatest.Virtual(t, 3)
		cl := c.Client(t)
		odd := topic.Topic{Name: "odd"}
		if _, err := kafka.Create(context.Background(), cl, []topic.Topic{odd}, 4, 1); err != nil {
			t.Fatal(err)
		}
		odd.LogAppendTime = true
		_, err := kafka.Partitions(context.Background(), cl, []topic.Topic{c.Topics.ETags, odd, {Name: "gone"}})
		var unfit *kafka.UnfitError
		if !errors.As(err, &unfit) {
			t.Fatalf("got %v, want an UnfitError", err)
		}
		for _, want := range []string{"odd has 4 partitions and tocsin.etags has 3", "odd has message.timestamp.type=CreateTime", "gone does not exist"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	})
}
