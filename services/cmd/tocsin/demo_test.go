package main

import (
	"math/rand/v2"
	"testing"
	"time"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/internal/settings"
)

// The demo's settings are taken as they are, and every device and region that
// the simulated fleet speaks of is in them, enabled.
func TestDemoFleetFitsItsSettings(t *testing.T) {
	write, err := settings.Parse(demoYAML)
	if err != nil {
		t.Fatal(err)
	}
	book := settings.NewBook()
	change, err := book.Apply(write, settings.Options{})
	if err != nil {
		t.Fatal(err)
	}
	book.Commit(change)
	devices := map[string]*settingsv1.Device{}
	for _, s := range book.Settings(demoAccount) {
		if d := s.GetDevice(); d != nil {
			devices[d.DeviceId] = d
		}
	}
	for _, id := range append([]string{demoBridge}, demoCameras...) {
		if devices[id] == nil {
			t.Errorf("device %s is not in demo.yaml", id)
		}
	}
	for id, region := range demoRegions {
		found := false
		for _, r := range devices[id].GetRegions() {
			found = found || r.RegionId == region && r.Enabled
		}
		if !found {
			t.Errorf("device %s has no enabled region %s", id, region)
		}
	}
}

// The opening shows all four cases with the holds of demo.yaml within a
// minute: what goes down comes back, the blip in less than the hold of 20 s.
func TestDemoOpeningShowsEachCase(t *testing.T) {
	down := map[string]time.Duration{}
	var blips, outages int
	for _, s := range append(demoOpening(), demoRound(rand.New(rand.NewPCG(1, 2)))...) {
		switch {
		case s.bits == bitsOffline || s.bits == bitsInternetOffline:
			down[s.device] = s.at
		case s.bits == bitsOnline && s.at > 0:
			if s.at-down[s.device] < 20*time.Second {
				blips++
			} else {
				outages++
			}
			delete(down, s.device)
		}
		if s.at > demoRoundLength {
			t.Errorf("step at %s is after the round", s.at)
		}
	}
	if blips != 2 || outages != 2 || len(down) != 0 {
		t.Errorf("%d blips, %d outages, %d still down; want 2, 2, 0", blips, outages, len(down))
	}
}
