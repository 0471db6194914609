// The OpenAPI document as a page.
const element = (name, text, ...children) => {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
};
const spec = await (await fetch("/openapi.json")).json();
const refName = (schema) => schema.$ref.split("/").pop();
const resolve = (schema) => (schema?.$ref ? spec.components.schemas[refName(schema)] : schema);

function typeName(schema) {
  if (!schema) return "";
  if (schema.$ref) return refName(schema);
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items)}`;
  return schema.enum ? schema.enum.join(", ") : schema.format || schema.contentMediaType || schema.type || "";
}

function fieldNote(name, field, required = []) {
  const fallback = field.default === undefined ? "optional" : `default ${JSON.stringify(field.default)}`;
  return [field.description, required.includes(name) ? "" : fallback].filter(Boolean).join("; ");
}

function fieldTable(schema) {
  const { properties = {}, required } = resolve(schema) || {};
  const rows = Object.entries(properties).map(([name, field]) => element("tr", "",
    element("td", "", element("code", name)),
    element("td", typeName(field)),
    element("td", fieldNote(name, field, required))));
  return element("table", "", ...rows);
}

function responseLine(status, response) {
  const types = Object.entries(response.content || {}).map(([type, { schema }]) => [type, typeName(schema)].filter(Boolean).join(" "));
  const line = element("p", `${status}: ${[response.description, ...types].join("; ")}`);
  line.className = "quiet";
  return line;
}

function operationArticle(path, method, operation) {
  const article = element("article", "", element("h3", `${method.toUpperCase()} ${path}`), element("p", operation.description));
  Object.entries(operation.requestBody?.content || {}).forEach(([type, { schema }]) =>
    article.append(element("p", `Request, ${type}:`), fieldTable(schema)));
  Object.entries(operation.responses).forEach(([status, response]) => article.append(responseLine(status, response)));
  return article;
}

const main = document.getElementById("api");
main.append(element("p", spec.info.description));
Object.entries(spec.paths).forEach(([path, methods]) => Object.entries(methods).forEach(([method, operation]) =>
  main.append(operationArticle(path, method, operation))));
main.append(element("h2", "Schemas"));
Object.entries(spec.components.schemas).forEach(([name, schema]) => {
  if (name.startsWith("Body_")) return;
  main.append(element("article", "", element("h3", name), element("p", schema.description), fieldTable(schema)));
});
