package web

// MoveRoutesToLoop makes the calls of all routes run on event loops, as if they had proved quick.
func MoveRoutesToLoop(h *HTTP) {
	h.routes.startOnLoop = true
	for _, r := range h.routes.byPattern.Range {
		r.(*route).onLoop.Store(true)
	}
}
