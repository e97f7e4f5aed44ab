package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// closeTimeout is how long one thing on the stack may take to be torn down.
const closeTimeout = 10 * time.Second

// Stack is what a process has to take down again: named, last in first out.
// What was acquired is pushed where it is acquired, so that nothing is taken
// down before what was built on it. The zero value is empty. One goroutine
// uses it.
type Stack struct{ items []item }

type item struct {
	name string
	down func(context.Context) error
}

// Push puts something on top. The context that down gets ends after 10 s.
func (s *Stack) Push(name string, down func(context.Context) error) {
	s.items = append(s.items, item{name, down})
}

// Close takes everything down, whatever fails on the way, and leaves the stack
// empty. The errors name what they are about.
func (s *Stack) Close(log *slog.Logger) error {
	var errs []error
	for len(s.items) > 0 {
		top := s.items[len(s.items)-1]
		s.items = s.items[:len(s.items)-1]
		log.Debug("closing", "what", top.name)
		if err := closeOne(top); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", top.name, err))
		}
	}
	return errors.Join(errs...)
}

func closeOne(it item) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return it.down(ctx)
}
