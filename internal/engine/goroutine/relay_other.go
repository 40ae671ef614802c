//go:build !linux

package goroutine

// pipes are of Linux: elsewhere what relays receive goes by mail.
type pipes struct{}

func (p *pipes) open(*group) {}

func (p *pipes) close() {}
