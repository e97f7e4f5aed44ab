//go:build synctests

package kafkatest

const swappedMutexes = true
