// Package api holds tests of what the API server itself does with the objects
// of Callgate, with no controller running: validation and defaults of the CRDs,
// the admission policies that stamp and protect a call, the roles, and printing.
package api
