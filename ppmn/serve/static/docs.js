// The OpenAPI document as a page.
const made = (name, text, ...children) => {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};
const spec = await (await fetch("/openapi.json")).json();
const named = (schema) => (schema?.$ref ? spec.components.schemas[schema.$ref.split("/").pop()] : schema);

function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  return schema.enum ? schema.enum.join(", ") : schema.format || schema.contentMediaType || schema.type || "";
}

function fields(schema) {
  const whole = named(schema), table = made("table");
  Object.entries(whole?.properties || {}).forEach(([name, field]) => {
    const needed = (whole.required || []).includes(name) ? "" : field.default === undefined ? "optional" : `default ${JSON.stringify(field.default)}`;
    table.append(made("tr", "", made("td", "", made("code", name)), made("td", kind(field)), made("td", [field.description, needed].filter(Boolean).join("; "))));
  });
  return table;
}

const main = document.getElementById("api");
main.append(made("p", spec.info.description));
Object.entries(spec.paths).forEach(([path, methods]) => Object.entries(methods).forEach(([method, operation]) => {
  const part = made("article", "", made("h3", `${method.toUpperCase()} ${path}`), made("p", operation.description || operation.summary));
  Object.entries(operation.requestBody?.content || {}).forEach(([type, { schema }]) => part.append(made("p", `Asks for ${type}:`), fields(schema)));
  Object.entries(operation.responses).forEach(([status, answer]) => {
    const types = Object.entries(answer.content || {}).map(([type, { schema }]) => [type, kind(schema)].filter(Boolean).join(" "));
    const line = made("p", `${status}: ${[answer.description, ...types].join("; ")}`);
    line.className = "quiet";
    part.append(line);
  });
  main.append(part);
}));
main.append(made("h2", "What the answers hold"));
Object.entries(spec.components.schemas).forEach(([name, schema]) => {
  if (!name.startsWith("Body_")) main.append(made("article", "", made("h3", name), made("p", schema.description || ""), fields(schema)));
});
