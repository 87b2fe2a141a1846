package schema

import "strings"

// Bounds of where subschemas stand. The library keeps each place as text (`#/properties/a/items`), as well as the place of
// every violation, and compares the places with one another.
const (
	maxPlaceBytes = 4 << 20 // places of all subschemas together; ten times what 5000 usual ones take
	maxAnchorWork = 1 << 27 // a second or two
)

// checkPlaces bounds what the places of the subschemas cost: their length, and the search for the anchor that a reference
// names, which climbs from each of them up to the root.
func checkPlaces(doc any) error {
	bytes, climb, anchors := 0, 0, 0
	visitSchemas(doc, nil, func(schema map[string]any, tokens []string) bool {
		length := len(placeOf(tokens))
		bytes += length
		climb += len(tokens) * (1 + length/32)
		for _, keyword := range references {
			reference, _ := schema[keyword].(string)
			if _, fragment, _ := strings.Cut(reference, "#"); fragment != "" && fragment[0] != '/' {
				anchors++
			}
		}
		return bytes <= maxPlaceBytes
	})
	if bytes > maxPlaceBytes {
		return &BoundError{"the JSON pointers to all subschemas have more than %d bytes (long names far up)", bytes, maxPlaceBytes, "bytes"}
	}
	if work := anchors * climb; work > maxAnchorWork {
		return &BoundError{"finding the anchors that references name costs %d units of work: refer by JSON pointers",
			work, maxAnchorWork, "units"}
	}
	return nil
}
